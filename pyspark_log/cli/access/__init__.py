"""Who may come in, what they may do, and how much of it.

user   `pylog user`: passwords
acl    `pylog acl`: who may do what
quota  `pylog quota`: how much users and client ids may take
"""
