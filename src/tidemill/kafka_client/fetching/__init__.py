"""The part of the client that reads: leaders, offsets, and the decompression of batches.

``Decoder`` of the extension turns the batches into Arrow's buffers.
"""
