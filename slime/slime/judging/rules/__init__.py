"""Judges that ask no model: phrases of people, results of tools."""
