"""New weights into running engines: two transports behind one publisher, and the proof that they arrived.

The trainer's process imports `publisher`; `intake` runs inside the engine.
"""
