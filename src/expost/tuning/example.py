"""The commented example of ``expost tune --init``; ``examples/digits.toml`` is the same text."""

EXAMPLE = """\
# expost tune digits.toml: the cheapest private model that reaches the goal.

[data]
name = "digits"             # scikit-learn's digits, or "breast_cancer"
# path = "rows.csv"         # instead of name: a .csv, .parquet or .npz file (arrays X and y)
# target = "label"          # for .csv and .parquet: the column to predict
feature_bounds = [0, 16]    # public, not computed from the data; or by column: { age = [0, 120] }
# categories = { city = ["Bern", "Zug"] }   # public lists; other values become "other"
# missing = { age = 40 }    # what replaces a missing value; or "indicator"
classes = 10                # the number of classes (labels 0, 1, …), or the labels: ["no", "yes"]
# rows = 1800               # a public number of rows: then the actual number stays private
holdout = 0.2               # share of the rows used for scoring and never for training
# public_test = "test.npz"  # rows that need no protection, with privacy.scoring = "public"

[model]
kind = "softmax"            # logistic, softmax, linear, cnn; "module:name" or "file.py:name" for a
                            # function or a class that makes a torch module
training = "auto"           # the cheapest first: "progressive" ("noise-reduction"), "dp-sgd"
# features = "auto"         # public map of a row for progressive training; or "plain"
# arguments = { width = 64 } # keyword arguments of that function
# input_shape = [1, 28, 28] # of one example, for modules; default: as in the array, else flat

[search]                    # every combination at every level …
epsilons = [0.5, 1, 2]
learning_rates = [1, 2, 4]
epochs = [10, 20]
batch_sizes = [256]         # expected size: rows are sampled
clips = [0.5, 1]
# features = ["plain", "auto"] # public maps of a row; default: rows as they are encoded
# samples = 8               # … or this many combinations, drawn at random (the draw is public)

[goal]
metric = "accuracy"         # or balanced_accuracy, log_loss, auc, mae, mse, r2
at_least = 0.8              # the goal: release the first model that passes it, cheapest level first
# maximize = true           # instead of at_least and confidence: maximise the score
confidence = 0.9            # of the statement "passed"; covers noise, selection and all attempts

[privacy]
delta = 1e-5                # of the whole job; the attempts share it
# max_epsilon = 4           # the most that the job may cost: fewer levels and attempts if need be
# tell = 0.2                # if the goal is missed: ε of a sharper score of the released model
# attempts = 10             # the most attempts; planned if left out; a miss costs little
# repeats = 1               # copies of each candidate
# expected_shares = [0.2]   # the share of settings that you expect to pass, from some level on
scoring = "private"         # noisy, on held-out rows; or "public", with data.public_test
# order = [16]              # charge at Rényi orders; default: those of the ledger's budget
# order = "all"             # charge in zCDP; default with a ledger whose budget is in zCDP
"""
