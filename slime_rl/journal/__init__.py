"""What a run leaves behind: its folder, its metrics, its learning curve and its summary."""
