"""One store in SQL, on PostgreSQL and on SQLite."""
