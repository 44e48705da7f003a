"""Users, rules and quotas at work: the log of ``state.security``, logins, and the authorizer."""
