"""FedMA: matches the units of clients' models before it averages them."""
