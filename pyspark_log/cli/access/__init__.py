"""Who may come in, what they may do, and how much of it.

user   `pylog user`: passwords
acl    `pylog acl`: who may do what
"""
