"""The command line: commands, their options and their progress; it parses, calls and prints."""
