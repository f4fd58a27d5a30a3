"""The rivals of BudgetFormer, one file each, as differences from full attention."""
