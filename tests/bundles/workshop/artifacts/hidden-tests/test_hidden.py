import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])


class Hidden(unittest.TestCase):
    def test_sum(self):
        from adder import add

        self.assertEqual(add(2, 3), 5)
