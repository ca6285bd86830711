"""Binary RL: rewards each turn with the judge's score of its next state."""
