"""Tables, as typed cells: a table a file."""
