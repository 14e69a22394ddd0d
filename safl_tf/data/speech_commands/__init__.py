"""Google Speech Commands v0.01: 64,721 one-second clips of 30 words."""
