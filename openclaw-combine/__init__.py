"""Combine: a reward says how good a reply was, a teacher that has read the hint says where."""
