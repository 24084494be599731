"""What Python workers of Spark run. Standard library, Arrow and numpy only."""
