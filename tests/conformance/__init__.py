"""What every exported method must do on every model, whatever its setting."""
