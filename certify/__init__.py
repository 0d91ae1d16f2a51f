"""Estimate and certify gradient alignment on real networks."""
