"""MariaDB and MySQL: one InnoDB transaction for rows and marker."""
