"""SQL: tables, transactions, and the queries of each noun as plain functions on an open transaction."""
