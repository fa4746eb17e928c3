"""From files to samples: readers, tokenizers, the cache of prepared tensors."""
