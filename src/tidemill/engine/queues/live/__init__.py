"""Live queues: lanes over logs, consumers, dispatching, and storing what was acknowledged.

Knows neither exchanges nor declarations.
"""
