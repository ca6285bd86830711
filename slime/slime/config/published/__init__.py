"""Spellings of other pages: each is translated, aloud, or refused."""
