"""The commented example of ``expost tune --init``; ``examples/digits.toml`` is the same text."""

EXAMPLE = """\
# expost tune digits.toml: the cheapest private model that passes the bar.

[data]
name = "digits"             # scikit-learn's digits (or "breast_cancer"); or path = "rows.npz" (X, y), "rows.csv", "rows.parquet"
# target = "label"          # csv and parquet: the column to predict
feature_bounds = [0, 16]    # public knowledge, not the data's own minimum and maximum; one pair, or a pair for each feature
classes = 10                # how many, with labels 0, 1, …; or their names: ["no", "yes"]
holdout = 0.2               # share of the rows that scores the models and never trains them
# public_test = "test.npz"  # with privacy.scoring = "public": rows that need no protection

[model]
kind = "softmax"            # logistic, softmax, linear, cnn, or "module:factory" of a function that returns a torch module
# input_shape = [1, 28, 28] # of one example, for cnn (this is what it takes) and modules; rows are flat otherwise

[search]                    # every combination at every level …
epsilons = [0.5, 1, 2]
learning_rates = [1, 2, 4]
epochs = [10, 20]
batch_sizes = [256]         # expected: rows are sampled
clips = [0.5, 1]
# samples = 8               # … or this many combinations, drawn publicly at random

[goal]
metric = "accuracy"         # or "mse", with loss_bound (the clipping bound of a row's squared error) and at_most
at_least = 0.8              # the bar: the first candidate that clears it is released, cheapest level first; or maximize = true
confidence = 0.9            # of the statement "passed": noise, selection and all attempts included

[privacy]
delta = 1e-5                # of the whole job; the attempts share it
# attempts = 10             # the most attempts to reach the bar (planned if left out); a miss costs little
# repeats = 1               # copies of each candidate
# expected_shares = [0.2]   # what you expect: this share of the settings passes, from some level on
scoring = "private"         # noisy, on held-out rows; or "public", with data.public_test
# order = [16]              # only with a ledger of Rényi budgets; its own orders are used if left out
"""
