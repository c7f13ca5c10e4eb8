"""Public maps of one row to numbers: features that were fixed without the data cost no privacy.

A linear model on good features needs far less ε than a model that must learn them. All features
here are stateless transformers with scikit-learn's interface. The features of a row do not depend
on other rows, bit for bit; every row has a norm of at most 1 and a constant column; and no row
makes them fail (:mod:`expost.features.feature_map`).

=================================  =================================================================
pictures                           :class:`OrientedGradients`
columns of a table                 :class:`Columns`; :class:`EncodedColumns` of encoded rows
text                               :class:`HashedText`
a function or a frozen module      :class:`Function`, :class:`Encoder`
on top of other features           :class:`RandomFourier`, in a :class:`Chain`
from a file                        :func:`features_from_dict`
=================================  =================================================================
"""

from expost.features.columns import Columns, EncodedColumns
from expost.features.feature_map import Features
from expost.features.functions import Chain, Encoder, Function, RandomFourier, features_from_dict
from expost.features.texts_and_pictures import HashedText, OrientedGradients

__all__ = [
    "Chain",
    "Columns",
    "EncodedColumns",
    "Encoder",
    "Features",
    "Function",
    "HashedText",
    "OrientedGradients",
    "RandomFourier",
    "features_from_dict",
]
