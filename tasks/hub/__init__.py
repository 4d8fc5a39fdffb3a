"""Any data set as the Hugging Face Hub has it, one client a user if a column names users."""
