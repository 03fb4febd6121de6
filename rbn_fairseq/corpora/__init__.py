"""Prepares the corpora of the paper: from the published files to data for fairseq.

IWSLT14 German-English and WMT16 English-German: tokenised, cleaned, split, cut into pieces by BPE,
made binary; compared with the standard files on the way.
"""
