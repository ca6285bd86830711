"""`python -m slime.config FLAG …`: what a training run given these flags would be told, without starting or loading it.

launch.sh asks here before it submits anything: a mistake costs a fraction of a second, and no torch.
"""

from slime.config.loader import load_config

if __name__ == "__main__":
    load_config(prog="python slime/train.py")  # help and errors are about what was typed there
