"""Where the theory can be tried: functions that meet the paper's assumptions.

bed      the clients' functions F_k, as data and a Keras model
trials   many independent runs of them at once, through `FederatedProcess`
exact    the mean squared error in closed form, where there is one
settings what is tried
studies  measured errors beside the bounds that speak of them
report   tables of what was found
"""
