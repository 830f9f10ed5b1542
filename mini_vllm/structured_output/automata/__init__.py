"""Automata over bytes and over tokens, in numpy, for `backend_native.py`."""
