"""Who may do what: a broker's knowledge of users, access control lists and tokens.

certificate_names  from the name in a certificate to a principal
access_list        whether a caller may do something (pure)
audit              lines of the log about who was refused what
authorizer         the same for the services, with a memory, and the errors
quotas             how much a caller may take, and how long one that took more waits
credentials        passwords and tokens, verified
openid             tokens of an OpenID provider, verified
records            what ZooKeeper keeps of all that, read, watched and changed
"""
