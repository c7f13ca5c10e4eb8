"""Compiled CPU kernels of DP-SGD (numba).

=================  =================================================================================
clipping           clip factors
linear             training steps of linear, logistic and softmax regression
network            training steps of convolutional and fully connected networks
network_layers     the layers of such a network, the table that describes it, a thread's memory
network_table      translation of a torch module into the table (imports torch)
update             noise, division by the expected batch size, optimiser
keystream, chacha  random numbers: ChaCha20 keystream, uniforms, Poisson samples
noise              exact rounded Gaussian noise
fixed_point        sums over rows that are exact in every order
matrix_product     matrix products in tiles
vector_products    the vector instructions of these products
compiled           the compiler decorators
=================  =================================================================================
"""
