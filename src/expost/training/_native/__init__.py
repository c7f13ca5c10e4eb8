"""Compiled CPU kernels of DP-SGD (numba).

=================  =================================================================================
linear             clip factors; training steps of linear, logistic and softmax regression
network            training steps of convolutional and fully connected networks, and the translation
                   of a torch module into their table
noise              random numbers: ChaCha20 keystream, uniforms, Poisson samples, exact rounded
                   Gaussian noise; the optimiser
fixed_point        sums over rows, also of gradients of torch, that are exact in every order
vector_products    matrix products in tiles, by vector instructions
compiled           the compiler decorators
=================  =================================================================================
"""
