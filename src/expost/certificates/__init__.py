"""Certificates: one document for all that is released, its price, its checks and its words.

What to read, in this order:

``document``        what a certificate is, and its charges, computed again
``verify``          is the charge right, and do signature, model and ledger agree?
``words``           which words a certificate becomes, at every door
``officer_report``  a release in words for privacy officers, and for a public registry
"""
