"""Two processes insert rows into one sqlite database, each row in a transaction of its own.

Arguments: the database, its journal mode, rows for each process. Prints the final number of rows and the result of the
integrity check.
"""

import os
import sqlite3
import sys

path, mode, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])


def connect():
    return sqlite3.connect(path, timeout=60, isolation_level=None)


def insert(writer):
    database = connect()
    for row in range(rows):
        database.execute("INSERT INTO entry VALUES (?, ?, ?)", (writer, row, f"value {row}" * 5))
    database.close()


database = connect()
answer = database.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
if answer != mode:
    sys.exit(f"journal mode {answer} instead of {mode}")
database.execute("CREATE TABLE entry (writer INTEGER, row INTEGER, value TEXT, PRIMARY KEY (writer, row))")
database.close()

children = []
for writer in range(2):
    child = os.fork()
    if child == 0:
        try:
            insert(writer)
        except BaseException as error:
            print(f"writer {writer}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
statuses = [os.waitpid(child, 0)[1] for child in children]
database = connect()
print(database.execute("SELECT count(*) FROM entry").fetchone()[0], end=" ")
print(database.execute("PRAGMA integrity_check").fetchone()[0])
if any(statuses):
    sys.exit(f"a writer failed: {statuses}")
