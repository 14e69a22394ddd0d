"""FedMA: rounds that match the units of devices' models before averaging."""
