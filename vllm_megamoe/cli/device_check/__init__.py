"""`check --backend cann`: two ranks ask the device what its operator's source leaves open, and compare it with a twin.

layer       a small layer, on the device and on the twin
questions   the open questions: what is called, which answers there are, which one the twin takes
agreement   one call of each use case beside the twin's, token by token
examine     all of it in two processes, each step with a limit on its time
report      what was found, as one file and on the terminal
command     what the command line calls
"""
