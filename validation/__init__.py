"""Run the papers' experiments on known laws and real networks, count misalignment, and report."""
