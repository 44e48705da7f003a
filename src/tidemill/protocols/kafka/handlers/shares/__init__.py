"""Records that members of share groups read and acknowledge (KIP-932)."""
