"""Prepares the corpora of the paper: from the published files to data for fairseq.

IWSLT14 German-English and WMT16 English-German: tokenised, cleaned, split, with BPE applied,
binary; compared with the standard files on the way.
"""
