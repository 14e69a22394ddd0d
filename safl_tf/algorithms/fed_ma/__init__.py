"""FedMA: rounds that match the units of clients' models before averaging."""
