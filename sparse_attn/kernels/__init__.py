"""Operations on the device, each with a plain torch reference that specifies it."""
