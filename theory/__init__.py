"""Derive, prove, enumerate and refute: the mathematics of gradient alignment."""
