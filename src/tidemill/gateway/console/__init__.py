"""The console: pages for people, at ``/`` of the gateway.

Each page is server-rendered HTML, and the same data as JSON at the same address with ``.json``. It
works without JavaScript; with it, live parts move. Must not know: the broker's inside.

How to add a page
-----------------

1. Write a module with an async function that takes a ``View`` and returns a dict of plain values
   (dataclasses, lists, texts, numbers; no bytes). That dict is the whole page: the template shows
   it, and the JSON twin is it. Take what you can from ``await view.snapshot()``, which costs the
   broker nothing; never ask per topic, group or partition in a list.
2. Write a template in ``templates/`` that extends ``base.html``::

       {% extends "base.html" %}
       {% block content %} what stays: forms, searches {% endblock %}
       {% block live %} what moves: it is sent again when it has changed {% endblock %}

   ``macros.html`` has what pages share: ``ui.listing`` is a list that is sorted and paged at the
   server, ``ui.table`` a table that keys can scroll, ``ui.form`` a form for an action; and graphs,
   empty states and links. Everything is escaped; never use ``|safe``. There are no inline scripts
   or styles: the browser refuses them. ``bytes_as_text`` cuts and decodes what a topic has.
3. Add a line to ``PAGES`` in ``table.py``, and one to the table in ``docs/console.md``.

A page that changes something has ``actions``: functions that get the view and the fields of the
form, which ``{% call ui.form(csrf, "NAME") %}`` makes. An action returns ``Done`` (the browser goes
to a page, which shows the text) or a dict, which is shown in the page as ``result``, e.g. a
preview. In read-only mode no action runs; templates hide forms with
``{% if not frame.is_read_only %}``.

Lists use ``lists.listed``: it filters, sorts and pages by the parameters of the URL.

A package that is not imported here, such as the demo, adds pages with the setting
``console.pages=MODULE``: the module has a list ``PAGES``, and a folder ``templates`` beside it.
What a folder ``static`` has is at ``/console/static/``; a template adds it in the block ``head``.
``streams.event_stream`` is the answer of a page that sends events of its own.

``CHECKS`` in ``table.py`` has functions that find what needs attention on the overview.
"""
