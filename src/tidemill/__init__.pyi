from tidemill.frames import Record as Record
from tidemill.frames import Records as Records
from tidemill.frames import read as read
from tidemill.local.broker import Broker as Broker
from tidemill.local.gateway import Gateway as Gateway

__version__: str
