"""The loop of the paper: state, clients, their local training, executors."""
