"""Users, what they may do, and how much they may take.

user   `pylog user`: passwords
acl    `pylog acl`: who may do what
quota  `pylog quota`: how much users and client ids may take
"""
