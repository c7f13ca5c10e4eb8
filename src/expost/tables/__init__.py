"""Tables: files, data frames and databases as columns. No row makes anything here fail.

``sources``        files, folders, databases and data frames as Ibis tables; views that are refused
``file_rows``      lines of text files, and cells of Parquet files and Arrow tables
``typed_columns``  Ibis; keys and conditions by the types of columns
``cells``          columns of data frames, lists and arrays as NumPy arrays and numbers
"""
