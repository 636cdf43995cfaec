"""The forms of loop nests for a GPU: programs that hold a tile each."""
