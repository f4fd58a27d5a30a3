"""What is read from records: statistics, tables and figures. Nothing here imports torch."""
