"""What the data buffer costs: against a bare server, with many groups outstanding, and with large arrays."""
